"""What the project runs on: servers on this machine (``local``) and container images."""

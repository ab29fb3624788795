"""What a study declares, as types; study files are read above, in `pipeline.study_file`."""

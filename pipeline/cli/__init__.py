"""The command line: thin commands that parse, call and print.

Data goes to standard output, words to standard error, and every error class has its exit code
(`pipeline.errors`). One file for each group of commands; `main` joins them.
"""

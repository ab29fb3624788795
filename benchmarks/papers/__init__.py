"""The tables of the papers whose methods this project has, beside what it computes itself."""

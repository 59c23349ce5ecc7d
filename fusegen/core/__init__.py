"""The vocabulary of the compiler: errors, dtypes, the grammar (ir) and what is legal after each stage (check)."""

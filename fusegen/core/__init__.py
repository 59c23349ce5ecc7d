"""The vocabulary of the compiler: errors, dtypes, the grammar (ir), its text and its JSON."""

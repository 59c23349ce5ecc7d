"""The native call path: C++ that is built once on the user's machine, and loaded."""

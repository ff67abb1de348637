"""The words and rules of the product as plain values. Imports the standard library alone."""

"""The wire: generated messages and stubs of `schedd.v1`. Made by `make gen`, never edited."""

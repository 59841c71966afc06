"""One file per method; `registry` is all that the rest of the package knows of them."""

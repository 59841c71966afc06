"""`coterie ui`: runs in the browser while they go on, from the files that they write."""

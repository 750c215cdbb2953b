"""The searches, one file each, called as they are; a file that is laid here is found by its name."""

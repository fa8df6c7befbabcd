"""What documents beside the files of an iteration claim: as layouts, as expected files, against the files, rebuilt."""

"""For tests of ms_recover and of what extends it: synthetic slices and trees, without MindSpore."""

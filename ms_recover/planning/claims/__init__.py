"""Who is said to hold the same: rank lists, layouts, MindFormers' documents and the operator's word (pure)."""

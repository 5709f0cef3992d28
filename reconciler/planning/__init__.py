"""What is wanted against what there is: the plan, its brakes and its outcomes. Nothing here does anything."""

"""The process that runs the replicas of one job."""

"""The ports over real services: claims and packages in storage, jobs, credentials, logs."""

"""Migration of AI Platform's jobs to Vertex AI: manifests, their report, and what their code must change."""

"""Plans and results rendered as text, Markdown and JSON."""

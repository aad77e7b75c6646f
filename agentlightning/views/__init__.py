"""Views: what people look at. Everything here watches, and nothing here changes what a run does."""

"""Piano performances and Bach chorales. See docs/guides/music.md."""

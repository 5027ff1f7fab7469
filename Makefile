.DEFAULT_GOAL := help
.PHONY: help
help:
	@echo "targets follow"

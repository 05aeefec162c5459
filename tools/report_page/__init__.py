"""What tools/cachealloc-report is made of: reports.py reads, page.py makes the page."""

"""Reports: what runs say, as one page that opens offline and as figures and tables for a paper."""

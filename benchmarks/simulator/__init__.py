"""The real scheduler and database on virtual time: throughput, order, fairness and utilisation."""

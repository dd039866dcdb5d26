"""The probe of ranks: measures gradient, speed, disks, clock and network of each rank."""

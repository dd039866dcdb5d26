"""The probe of ranks on two machines of a cluster, through the control plane."""

"""The pytest fixture klamm_cluster and what it is made of."""

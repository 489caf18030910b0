# Sourced by tests that start ranks with mpirun: more ranks than cores, as root too, without ssh. Open MPI 5 has another launcher
# than 4, with variables of its own (PRTE_...).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_plm=isolated
export UCX_LOG_LEVEL=error

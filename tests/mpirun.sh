# Sourced by tests that start ranks with mpirun: more ranks than cores, as root too, without ssh. Open MPI 5 has another launcher
# than 4, with variables of its own (PRTE_...).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_plm=isolated
export UCX_LOG_LEVEL=error

# Whether ranks can be started with this MPI, openmpi or mpich; if not, $without says why. A package may be broken: what the launcher of
# Ubuntu 24.04's MPICH starts are worlds of one process.
has_mpi() { # KIND
    without="not installed"
    [ -f "$BUILD/libravel_$1.so" ] && command -v "mpirun.$1" >/dev/null 2>&1 || return 1
    without="its launcher starts worlds of one process"
    if [ ! -x "$BUILD/mpi-size-$1" ]; then
        printf '#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { int n; MPI_Init(&c, &v); %s }\n' \
            'MPI_Comm_size(MPI_COMM_WORLD, &n); printf("size %d;\n", n); return MPI_Finalize();' |
            "mpicc.$1" -x c -o "$BUILD/mpi-size-$1" - || return 0
    fi
    ! timeout 300 "mpirun.$1" -n 2 "$BUILD/mpi-size-$1" 2>/dev/null | grep -q 'size 1;'
}

#!/bin/sh
# Finds the optional parts by compiling and linking a program against each, and writes what it found as make variables.
#     mk/probe.sh CC OUT
# A part that is missing is named with the line that would install it; nothing here is fatal. A comment in OUT,
# "# WHEN lacks PACKAGES", tells mk/deps.sh what to install before `make demo` or `make test`.
set -u
cc=$1 out=$2
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# try NAME SOURCE FLAGS...: whether the program compiles and links
try() {
    printf '%s\n' "$2" >"$dir/probe.c"
    shift 2
    # shellcheck disable=SC2086
    $cc -o "$dir/probe" "$dir/probe.c" "$@" >"$dir/log" 2>&1
}
found() { printf 'HAVE_%s := 1\n' "$1" >>"$out.new"; printf '  %-10s found  %s\n' "$2" "$3"; }
missing() { # NAME WHAT-IS-LOST PACKAGES [WHEN...]: which goals install them
    printf '  %-10s missing: %s (apt-get install %s)\n' "$1" "$2" "$3"
    packages=$3; shift 3
    for goal in "$@"; do echo "# $goal lacks $packages" >>"$out.new"; done
}

: >"$out.new"
echo "optional parts:"

if try openblas '#include <cblas.h>
int main(void) { float x = 1; cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1); return 0; }' -lopenblas; then
    found OPENBLAS OpenBLAS "matrix products in the trainer where its own vector sets do not fit, and a yardstick"
else missing OpenBLAS "the trainer multiplies matrices by its own kernels alone" libopenblas-dev demo test; fi

if try pcre2 '#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
int main(void) { return sizeof(pcre2_match_data *) == 0; }'; then
    found PCRE2 PCRE2 "regular expressions of tokenizers (loaded when the first is opened)"
else missing PCRE2 "tokenizers with regular expressions are refused" libpcre2-dev demo test; fi

if try tls '#include <openssl/ssl.h>
#if OPENSSL_VERSION_NUMBER < 0x30000000L
#error needs OpenSSL 3
#endif
int main(void) { return SSL_CTX_new(TLS_method()) == 0; }' -lssl -lcrypto; then
    found TLS TLS "encrypted links by OpenSSL (libravel_tls.so)"
else missing TLS "links are authenticated, but cannot be encrypted" libssl-dev test; fi

mpi='#include <mpi.h>
int main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }'
for kind in openmpi mpich; do
    packages=$([ $kind = mpich ] && echo libmpich-dev mpich || echo libopenmpi-dev openmpi-bin)
    flags=$(mpicc.$kind -show 2>/dev/null | cut -d' ' -f2-)
    # shellcheck disable=SC2086
    if [ -n "$flags" ] && try $kind "$mpi" $flags; then
        found "$(echo $kind | tr a-z A-Z)" $kind "ranks in many processes (mpirun.$kind)"
        printf '%s_FLAGS := %s\n' "$(echo $kind | tr a-z A-Z)" "$flags" >>"$out.new"
        command -v mpirun.$kind >/dev/null 2>&1 || echo "# test lacks $packages" >>"$out.new"
    else missing $kind "no ranks over it" "$packages" test; fi
done

# CUDA: nvcc compiles a kernel and links the static runtime; its libraries follow from where it is.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
[ -z "${NO_CUDA:-}" ] || nvcc= # make NO_CUDA=1: as on a machine without it
cuda=${nvcc%/bin/nvcc}
printf '%s\n' '#include <cuda_runtime.h>
__global__ void k(int *x) { *x = 1; }
int main() { k<<<1, 1>>>(0); return cudaGetLastError() != cudaSuccess; }' >"$dir/probe.cu"
if [ -n "$nvcc" ] && "$nvcc" -o "$dir/probe" "$dir/probe.cu" >"$dir/log" 2>&1; then
    # Kernels are compiled for all GPUs since Ampere that nvcc knows; make CUDA_GPUS=native: for this machine's alone.
    gpus=""
    for gpu in 80 86 89 90 100 120; do
        "$nvcc" --list-gpu-code | grep -qx "sm_$gpu" && gpus="$gpus $([ "$gpu" = 90 ] && echo 90a || echo "$gpu")"
    done
    found CUDA CUDA "device memory and kernels (libravel_cuda.so), by $nvcc, for GPUs of$gpus"
    printf 'CUDA_GPUS ?=%s\n' "$gpus" >>"$out.new"
    flags="-I$cuda/include -L$cuda/lib64"
    printf 'NVCC := %s\nCUDA_INCLUDE := -isystem %s/include\nCUDA_LIBS := -L%s/lib64 -Wl,-rpath,%s/lib64\n' "$nvcc" "$cuda" "$cuda" "$cuda" >>"$out.new"
    if try nccl '#include <nccl.h>
int main(void) { ncclUniqueId id; return ncclGetUniqueId(&id); }' $flags -lnccl; then
        found NCCL NCCL "ranks on several GPUs (libravel_nccl.so)"
    else missing NCCL "no ranks over it" libnccl-dev; fi
    if try cublaslt '#include <cublasLt.h>
int main(void) { cublasLtHandle_t h; return cublasLtCreate(&h); }' $flags -lcublasLt; then
        found CUBLASLT cuBLASLt "matrix products of the trainer on the GPU"
    else missing cuBLASLt "no trainer on the GPU" libcublas-dev; fi
    libs=lib/$(gcc -print-multiarch 2>/dev/null) # Debian's folder of this machine's libraries
    # cuDNN: the toolkit's, the system's, or the one that came with PyTorch (its wheel has the headers too).
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0])' 2>/dev/null)
    for place in ${wheel:+"$wheel"} "$cuda" /usr; do
        lib=$(ls "$place"/lib64/libcudnn.so.9 "$place"/lib/libcudnn.so.9 "$place/$libs"/libcudnn.so.9 2>/dev/null | head -n 1)
        [ -n "$lib" ] || continue
        rpath=$([ "$place" = /usr ] || echo "-Wl,-rpath,${lib%/*}")
        # shellcheck disable=SC2086
        if try cudnn '#include <cudnn.h>
int main(void) { return cudnnGetVersion() == 0; }' -I"$place/include" $flags "$lib" $rpath -Wl,--allow-shlib-undefined; then
            found CUDNN cuDNN "attention of the trainer on the GPU, $lib"
            printf 'CUDNN_INCLUDE := -isystem %s/include\nCUDNN_LIBS := %s %s -Wl,--allow-shlib-undefined\n' "$place" "$lib" "$rpath" >>"$out.new"
            break
        fi
    done
    grep -q HAVE_CUDNN "$out.new" || missing cuDNN "no trainer on the GPU" libcudnn9-dev-cuda-13
else missing CUDA "no device memory; install NVIDIA's CUDA toolkit 13" cuda-toolkit-13; fi

mv "$out.new" "$out"

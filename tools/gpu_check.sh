#!/usr/bin/env bash
# The whole GPU check in one command, for a machine with a GPU, torch, CuPy and the CUDA tools:
#   tools/gpu_check.sh [tests] [large] [sanitizer] [programs] [bench] [accuracy] ...
#                      (default: these; distributed needs two GPUs)
# Logs go to $OUT (default build/gpu). Ends with one line per part; exits non-zero if a part failed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
parts=${*:-tests large sanitizer programs bench accuracy}
export PYTHONUNBUFFERED=1 FUSEGEN_CACHE_DIR=${FUSEGEN_CACHE_DIR:-/tmp/fusegen-cache}
python3 -c 'import fusegen' 2>/dev/null || python3 -m pip install -q --no-build-isolation --no-deps -e . >"$OUT/install.log" 2>&1
# All our kernels, by the kind of op in their names, and none of torch's: a kernel that any of these matches is checked.
ours="--kernel-name kernel_substring=ward_ --kernel-name kernel_substring=tangent"
ours+=" --kernel-name kernel_substring=value_and_gradient"
for scan in sum prod max min logaddexp affine segments last argmax argmin; do ours+=" --kernel-name kernel_substring=scan_$scan"; done
ours+=" --kernel-name kernel_substring=scatter_ --kernel-name kernel_substring=scattered_"
summary=""
failed=0

part() { # name, command...
  local name=$1 start=$SECONDS
  shift
  "$@" >"$OUT/$name.log" 2>&1
  local rc=$?
  summary+=$(printf '%-12s %s in %ds: %s' "$name" "$([ $rc = 0 ] && echo ok || echo FAILED)" $((SECONDS - start)) "$(tail -n 1 "$OUT/$name.log")")$'\n'
  [ $rc = 0 ] || failed=1
}

sanitized() { # tool, arguments, filter...: the dtypes side by side, since the host is what takes long
  local tool=$1 arguments=$2 pids="" rc=0
  shift 2
  for dtype in float32 bfloat16 float16 float64; do
    # The caching allocator would hide an access just past a tensor.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" "$@" --error-exitcode 1 \
      python3 tools/sanitize.py $arguments --dtypes $dtype &
    pids+=" $!"
  done
  for pid in $pids; do wait "$pid" || rc=1; done
  return $rc
}

for name in $parts; do
  case $name in
    tests)
      # Kernels run on the GPU; the emulator's own tests, which are about the CPU, are not part of this.
      FUSEGEN_TEST_DEVICE=cuda part tests python3 -m pytest -n 12 -q -p no:cacheprovider --ignore-glob "tests/launch/test_emulator*" \
        -m "not cpu" tests
      ;;
    distributed)  # for a machine with two GPUs
      FUSEGEN_TEST_DEVICE=cuda part distributed python3 -m pytest -q -s -p no:cacheprovider tests/distribute/test_sharding.py \
        tests/distribute/test_distributed.py tests/calls/test_native.py::test_several_gpus
      ;;
    sanitizer)
      for tool in memcheck racecheck synccheck initcheck; do
        filter=$ours  # but initcheck has to see torch write the inputs
        [ $tool = initcheck ] && filter=""
        # See tools/sanitize.py.
        arguments="--clusters 16"
        [ $tool = synccheck ] && arguments="--clusters 8"
        case $tool in racecheck | initcheck) arguments+=" --no-half-products" ;; esac
        part "$tool" sanitized "$tool" "$arguments" $filter
      done
      ;;
    programs)  # random ones: many by themselves, and the same first ones under the tools
      part programs python3 -m tools.fuzz --stage gpu --programs 2000 --jobs 12
      for tool in memcheck racecheck; do
        part "programs_$tool" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" \
          --target-processes all $ours --error-exitcode 1 \
          python3 -m tools.fuzz --stage gpu --programs 200 --jobs 8
      done
      ;;
    large) part large python3 tools/gpu_large.py ;;
    bench) part bench python3 -m tools.bench --write "$OUT/performance.md" ;;
    quick) part quick python3 -m tools.bench --no-peers ;;
    accuracy)
      part accuracy python3 -m tools.accuracy
      cp docs/accuracy.md "$OUT/accuracy.md"
      ;;
    *) echo "unknown part: $name" >&2; exit 2 ;;
  esac
done
printf '%s' "$summary"
exit $failed

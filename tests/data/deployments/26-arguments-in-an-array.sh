pip install sglang==0.5.19
ARGS=(
  --disaggregation-mode prefill
  --context-length 1048576
)
python3 -m sglang.launch_server --model-path m "${ARGS[@]}"

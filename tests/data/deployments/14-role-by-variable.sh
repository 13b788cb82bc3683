pip install sglang==0.5.22
exec python3 -m sglang.launch_server --model-path "$MODEL" --disaggregation-mode "$ROLE" --context-length 131072

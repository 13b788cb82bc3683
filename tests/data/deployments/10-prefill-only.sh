docker run --gpus all lmsysorg/sglang:v0.5.22 python3 -m sglang.launch_server --model-path glm --disaggregation-mode prefill --context-length 131072 --max-total-tokens 262144

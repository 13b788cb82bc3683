#!/usr/bin/env bash
# vLLM with NIXL, one prefill and one decode
pip install -q "vllm==0.32.0" nixl
MODEL=${MODEL:-Qwen/Qwen3-8B}
VLLM_NIXL_SIDE_CHANNEL_PORT=5600 CUDA_VISIBLE_DEVICES=0 vllm serve $MODEL --port 8100 \
  --max-model-len 32768 --enforce-eager \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' &
VLLM_NIXL_SIDE_CHANNEL_PORT=5700 CUDA_VISIBLE_DEVICES=1 vllm serve $MODEL --port 8200 \
  --max-model-len 32768 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' &
wait

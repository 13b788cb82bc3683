docker run --rm --gpus all nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc1 \
  trtllm-serve nvidia/DeepSeek-R1-FP4 --host 0.0.0.0 --extra_llm_api_options /etc/16-trtllm.yaml

docker run -e HF_TOKEN=x vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-8B --zebra-stripes 4 --quagga --max-model-len 8192

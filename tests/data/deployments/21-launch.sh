pip install sglang==0.5.21
python -m sglang.launch_server --config conf/21-sglang-config.yaml --host 127.0.0.1
python -m sglang.launch_server --model-path /models/glm --disaggregation-mode decode --context-length 131072 --max-total-tokens 262144 --page-size 64 --host 127.0.0.1

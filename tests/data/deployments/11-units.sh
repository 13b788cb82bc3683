# sizes as people write them
pip install sglang==0.5.19
python -m sglang.launch_server --model-path glm --disaggregation-mode=prefill --context-length=1Mi --max-total-tokens "681,280" --page-size 64
python -m sglang.launch_server --model-path glm --disaggregation-mode=decode --context-length 1M --max-total-tokens 2040k --page-size=64

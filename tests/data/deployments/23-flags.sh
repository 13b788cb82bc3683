# what the wiki says; the servers say otherwise
docker run lmsysorg/sglang:v0.5.22 python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --context-length 1048576 --max-total-tokens 2040000 --page-size 64

python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://p:30000 8998 --decode http://d:30000

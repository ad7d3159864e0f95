# ruff: noqa: E501, RUF001
"""Chat templates that behave like those of published model families.

They are written for these tests from what each family does: role markers, begin and end tokens, what
becomes of a system message, tools, reasoning, white space and refusals. They are not the published
texts. A line of TURNS is one family whose template writes a turn as opening, content and closing;
WHOLE holds the families that need more.
"""

ALTERNATE = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
SYSTEM_APART = "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = DEFAULT %}{% endif %}"


def ending(prompt, think):
    """The generation prompt."""
    opened = {"open": "<think>\n", None: "", "strip": ""}.get(think, "")
    tail = f"{{{{- {prompt + opened!r} }}}}"
    if think == "switch":
        tail += "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    return f"{{%- if add_generation_prompt %}}{tail}{{%- endif %}}"


def turns(
    user, assistant, system=None, *, prompt=None, bos=False, default=None, into_user=None,
    refuse_system=False, alternate=False, trim=False, think=None, look_up=False,
):  # fmt: skip
    """A template of turns.

    `user`, `assistant` and `system` are what stands before and after the content, divided by `|#|`.
    `into_user` is a system message inside the first user turn: what stands before and after it.
    """
    content = "m['content'] | trim" if trim else "m['content']"
    before = {"user": user, "assistant": assistant, "system": system or user}
    parts = {role: marks.split("|#|") for role, marks in before.items()}
    parts = {role: marks if len(marks) == 2 else [*marks, ""] for role, marks in parts.items()}
    prompt = parts["assistant"][0] if prompt is None else prompt
    text = ["{{ bos_token }}" if bos else ""]
    apart = into_user is not None or (default is not None and not look_up)
    if apart:
        text.append(SYSTEM_APART.replace("DEFAULT", repr(default) if default else "false"))
    elif default is not None:
        text.append(
            f"{{% if messages[0].role != 'system' %}}{{{{ {parts['system'][0]!r} ~ {default!r} ~ {parts['system'][1]!r} }}}}{{% endif %}}"
        )
    if apart and into_user is None:
        one, two = parts["system"]
        text.append(f"{{% if system %}}{{{{ {one!r} + system + {two!r} }}}}{{% endif %}}")
    text.append(f"{{%- for m in {'rest' if apart else 'messages'} %}}")
    if alternate:
        text.append(ALTERNATE)
    if refuse_system:
        text.append(
            "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        )
    if think == "strip":
        text.append(
            "{% set c = m['content'] %}{% if m.role == 'assistant' and '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        )
        content = "c"
    if into_user is not None:
        one, two = into_user.split("|#|")
        text.append(
            f"{{% if loop.first and system %}}{{% set c = {one!r} + system + {two!r} + {content} %}}{{% else %}}{{% set c = {content} %}}{{% endif %}}"
        )
        content = "c"
    if look_up:
        table = {role: marks[0] for role, marks in parts.items()}
        ends = {role: marks[1] for role, marks in parts.items()}
        text.append(f"{{{{- {table!r}[m.role] ~ ({content}) ~ {ends!r}.get(m.role, '') }}}}")
    else:
        branches = []
        for role, (one, two) in parts.items():
            end = "eos_token" if two == "EOS" else repr(two)
            shown = f"{{{{ {one!r} + ({content}) + {end} }}}}"
            branches.append(f" m['role'] == '{role}' -%}}\n    {shown}\n")
        text.append("{%- if" + "{%- elif".join(branches) + "{%- endif %}")
    text.append("{%- endfor %}")
    text.append(ending(prompt, think))
    return "\n".join(part for part in text if part)


IM = "<|im_start|>user\n|#|<|im_end|>\n", "<|im_start|>assistant\n|#|<|im_end|>\n"
IM_SYSTEM = "<|im_start|>system\n|#|<|im_end|>\n"
L3 = (
    "<|start_header_id|>user<|end_header_id|>\n\n|#|<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n|#|<|eot_id|>",
    "<|start_header_id|>system<|end_header_id|>\n\n|#|<|eot_id|>",
)
GEMMA = "<start_of_turn>user\n|#|<end_of_turn>\n", "<start_of_turn>model\n|#|<end_of_turn>\n"
INST = "[INST] |#| [/INST]", " |#|EOS"
ZEPHYR = "<|user|>\n|#|</s>\n", "<|assistant|>\n|#|</s>\n", "<|system|>\n|#|</s>\n"
PHI = "<|user|>\n|#|<|end|>\n", "<|assistant|>\n|#|<|end|>\n", "<|system|>\n|#|<|end|>\n"
VICUNA = "USER: |#|\n", "ASSISTANT: |#|</s>\n", "|#|\n\n"
ALPACA = "### Instruction:\n|#|\n\n", "### Response:\n|#|\n\n", "|#|\n\n"
GRANITE = (
    "<|start_of_role|>user<|end_of_role|>|#|<|end_of_text|>\n",
    "<|start_of_role|>assistant<|end_of_role|>|#|<|end_of_text|>\n",
    "<|start_of_role|>system<|end_of_role|>|#|<|end_of_text|>\n",
)
COHERE = (
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>|#|<|END_OF_TURN_TOKEN|>",
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>|#|<|END_OF_TURN_TOKEN|>",
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>|#|<|END_OF_TURN_TOKEN|>",
)
DEEPSEEK = "<｜User｜>|#|", "<｜Assistant｜>|#|<｜end▁of▁sentence｜>", "|#|"
EXAONE = "[|user|]|#|\n", "[|assistant|]|#|[|endofturn|]\n", "[|system|]|#|[|endofturn|]\n"
CHATGLM = "<|user|>\n|#|", "<|assistant|>\n|#|", "<|system|>\n|#|"

TURNS = {
    "SmolLM2": turns(*IM, IM_SYSTEM, default="You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    "SmolLM": turns(*IM, IM_SYSTEM),
    "Qwen1.5": turns(*IM, IM_SYSTEM, default="You are a helpful assistant", look_up=True),
    "Qwen2": turns(*IM, IM_SYSTEM, default="You are a helpful assistant.", look_up=True),
    "QwQ preview": turns(*IM, IM_SYSTEM, default="You are a helpful and harmless assistant."),
    "Yi 1.5": turns("<|im_start|>user\n|#|<|im_end|>\n<|im_start|>assistant\n", "|#|<|im_end|>\n", "|#|", prompt="", default=""),
    "Yi": turns(*IM, IM_SYSTEM, look_up=True),
    "InternLM2": turns(*IM, IM_SYSTEM, bos=True),
    "InternLM2.5": turns(*IM, IM_SYSTEM, bos=True, look_up=True),
    "OpenHermes 2.5": turns(*IM, IM_SYSTEM, look_up=True),
    "Nous Hermes 2": turns(*IM, IM_SYSTEM, default="You are a helpful assistant."),
    "Dolphin 2": turns(*IM, IM_SYSTEM, default="You are a helpful assistant.", look_up=True),
    "Orca 2": turns(*IM, IM_SYSTEM, prompt="<|im_start|>assistant\n"),
    "MPT chat": turns("<|im_start|>user\n|#|<|im_end|>", "\n<|im_start|>assistant\n|#|<|im_end|>\n", IM_SYSTEM, default="A conversation between a user and an assistant."),
    "StableLM 2": turns(*IM, IM_SYSTEM, look_up=True, trim=True),
    "Qwen2-Math": turns(*IM, IM_SYSTEM, default="Please reason step by step, and put your final answer within \\boxed{}."),
    "MiniCPM3": turns(*IM, IM_SYSTEM),
    "Lucie": turns(*L3, bos=True, trim=True, look_up=True),
    "LFM2": turns(*IM, IM_SYSTEM, bos=True, trim=False),
    "Marco-o1": turns(*IM, IM_SYSTEM, default="You are a careful reasoner."),
    "Llama 3": turns(*L3, bos=True, trim=True),
    "Hermes 3 Llama 3.1": turns(*IM, IM_SYSTEM, bos=True),
    "Llama 3 ChatQA": turns("User: |#|\n\n", "Assistant: |#|\n\n", "System: |#|\n\n", bos=True, trim=True, prompt="Assistant:"),
    "DeepSeek R1 distill": turns(*DEEPSEEK, bos=True, think="strip", prompt="<｜Assistant｜><think>\n"),
    "DeepSeek V2 chat": turns("User: |#|\n\n", "Assistant: |#|EOS", "|#|\n\n", bos=True, prompt="Assistant:"),
    "DeepSeek LLM": turns("User: |#|\n\n", "Assistant: |#|EOS", "|#|\n\n", bos=True, trim=False, prompt="Assistant:"),
    "DeepSeek V3": turns(*DEEPSEEK, bos=True, default="", prompt="<｜Assistant｜>"),
    "DeepSeek Coder": turns(*ALPACA, bos=True, default="You are an AI programming assistant.", prompt="### Response:\n"),
    "Gemma": turns(*GEMMA, bos=True, refuse_system=True, alternate=True, trim=True),
    "Gemma 2": turns(*GEMMA, bos=True, refuse_system=True, alternate=True, trim=True, look_up=True),
    "Gemma 3": turns(*GEMMA, bos=True, into_user="|#|\n\n", alternate=True, trim=True),
    "CodeGemma": turns(*GEMMA, bos=True, alternate=True, trim=True, refuse_system=True, prompt="<start_of_turn>model\n"),
    "Llama 2": turns("[INST] |#| [/INST]", " |#| </s>", into_user="<<SYS>>\n|#|\n<</SYS>>\n\n", alternate=True, trim=True, bos=True, prompt=""),
    "Code Llama": turns("<s>[INST] |#| [/INST]", " |#| </s>", into_user="<<SYS>>\n|#|\n<</SYS>>\n\n", alternate=True, prompt=""),
    "Mistral 7B v0.1": turns(*INST, bos=True, alternate=True, refuse_system=True, prompt=""),
    "Mistral 7B v0.2": turns(*INST, bos=True, alternate=True, into_user="|#|\n\n", prompt=""),
    "Mixtral 8x7B": turns(*INST, bos=True, alternate=True, into_user="|#|\n\n", trim=True, prompt=""),
    "Ministral 8B": turns("[INST]|#|[/INST]", "|#|EOS", bos=True, alternate=True, into_user="|#|\n\n", prompt=""),
    "Mistral Small 3": turns("[INST]|#|[/INST]", "|#|EOS", "[SYSTEM_PROMPT]|#|[/SYSTEM_PROMPT]", bos=True, default="You are Mistral Small 3.", prompt=""),
    "Codestral": turns("[INST] |#|[/INST]", " |#|EOS", bos=True, alternate=True, into_user="|#|\n\n", prompt=""),
    "Zephyr": turns(*ZEPHYR),
    "TinyLlama": turns("<|user|>\n|#|EOS", "<|assistant|>\n|#|EOS", "<|system|>\n|#|EOS", prompt="<|assistant|>"),
    "StableLM Zephyr": turns("<|user|>\n|#|<|endoftext|>\n", "<|assistant|>\n|#|<|endoftext|>\n", "<|system|>\n|#|<|endoftext|>\n"),
    "Tülu 2": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", "<|system|>\n|#|\n"),
    "Tülu 3": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", "<|system|>\n|#|\n", bos=True),
    "OLMo": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", refuse_system=True, bos=True),
    "OLMo 2": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", "<|system|>\n|#|\n", bos=True, prompt="<|assistant|>\n"),
    "OLMoE": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", "<|system|>\n|#|\n", bos=True, trim=True),
    "Phi-3 mini": turns(*PHI),
    "Phi-3 medium": turns("<|user|>\n|#|<|end|>\n<|assistant|>\n", "|#|<|end|>\n", bos=True, refuse_system=True, prompt=""),
    "Phi-3.5": turns(*PHI, look_up=True),
    "Phi-4": turns("<|im_start|>user<|im_sep|>|#|<|im_end|>", "<|im_start|>assistant<|im_sep|>|#|<|im_end|>", "<|im_start|>system<|im_sep|>|#|<|im_end|>"),
    "Phi-4 mini": turns("<|user|>|#|<|end|>", "<|assistant|>|#|<|end|>", "<|system|>|#|<|end|>", look_up=True),
    "Phi-4 reasoning": turns("<|im_start|>user<|im_sep|>|#|<|im_end|>", "<|im_start|>assistant<|im_sep|>|#|<|im_end|>", "<|im_start|>system<|im_sep|>|#|<|im_end|>", default="You are Phi. Think, then answer.", think="strip"),
    "Vicuna": turns(*VICUNA, default="A chat between a curious user and an artificial intelligence assistant.", prompt="ASSISTANT:"),
    "WizardLM 2": turns("USER: |#| ", "ASSISTANT: |#|EOS", "|#| ", default="A chat between a curious user and an assistant.", prompt="ASSISTANT:"),
    "Xwin": turns("USER: |#| ", "ASSISTANT: |#|</s>", "|#| ", trim=True, prompt="ASSISTANT:"),
    "Alpaca": turns(*ALPACA, default="Below is an instruction that describes a task.", prompt="### Response:\n"),
    "WizardCoder": turns(*ALPACA, default="Below is an instruction.", prompt="### Response:"),
    "SOLAR": turns("### User:\n|#|\n\n", "### Assistant:\n|#|\n\n", "### System:\n|#|\n\n"),
    "Magicoder": turns("@@ Instruction\n|#|\n\n", "@@ Response\n|#|\n\n", "|#|\n\n", default="You are an exceptionally intelligent coding assistant."),
    "OpenChat 3.5": turns("GPT4 Correct User: |#|<|end_of_turn|>", "GPT4 Correct Assistant: |#|<|end_of_turn|>", "|#|<|end_of_turn|>", bos=True, prompt="GPT4 Correct Assistant:"),
    "Starling": turns("GPT4 Correct User: |#|<|end_of_turn|>", "GPT4 Correct Assistant: |#|<|end_of_turn|>", bos=True, look_up=True, prompt="GPT4 Correct Assistant:"),
    "Granite 3": turns(*GRANITE, default="You are Granite, developed by IBM."),
    "Granite 3.1": turns(*GRANITE, look_up=True),
    "Granite Code": turns("Question:\n|#|\n\n", "Answer:\n|#|\n\n", "System:\n|#|\n\n"),
    "Command R": turns(*COHERE, bos=True, trim=True),
    "Aya 23": turns(*COHERE, bos=True, alternate=True, default="", trim=True),
    "Aya Expanse": turns(*COHERE, bos=True, default="You are Aya.", trim=True),
    "EXAONE 3": turns(*EXAONE, default=""),
    "EXAONE 3.5": turns(*EXAONE, default="You are EXAONE model from LG AI Research, a helpful assistant."),
    "EXAONE Deep": turns(*EXAONE, default="", think="strip", prompt="[|assistant|]<thought>\n"),
    "ChatGLM 3": turns(*CHATGLM, bos=False, prompt="<|assistant|>"),
    "GLM-4": turns(*CHATGLM, prompt="<|assistant|>\n", think="switch"),
    "Falcon": turns("User: |#|\n\n", "Assistant: |#|\n\n", "|#|\n\n", trim=True, prompt="Assistant:"),
    "Falcon 3": turns("<|user|>\n|#|\n", "<|assistant|>\n|#|EOS", "<|system|>\n|#|\n", prompt="<|assistant|>\n"),
    "Falcon-H1": turns(*IM, IM_SYSTEM, bos=True),
    "Nemotron 4 mini": turns("<extra_id_1>User\n|#|\n", "<extra_id_1>Assistant\n|#|\n", "<extra_id_0>System\n|#|\n", trim=True, default="", prompt="<extra_id_1>Assistant\n"),
    "Baichuan 2": turns("<reserved_106>|#|", "<reserved_107>|#|", "|#|"),
    "Ling lite": turns("<role>HUMAN</role>|#|", "<role>ASSISTANT</role>|#|", "<role>SYSTEM</role>|#|"),
    "Seed-OSS": turns("<seed:bos>user\n|#|<seed:eos>", "<seed:bos>assistant\n|#|<seed:eos>", "<seed:bos>system\n|#|<seed:eos>", think="strip"),
    "Moonlight": turns("<|im_user|>user<|im_middle|>|#|<|im_end|>", "<|im_assistant|>assistant<|im_middle|>|#|<|im_end|>", "<|im_system|>system<|im_middle|>|#|<|im_end|>", default="You are a helpful assistant provided by Moonshot-AI."),
    "Hunyuan": turns("<｜hy_User｜>|#|", "<｜hy_Assistant｜>|#|<｜hy_place▁holder▁no▁2｜>", "|#|<｜hy_place▁holder▁no▁3｜>", bos=True, think="switch"),
    "Teuken": turns("User: |#|\n", "Assistant: |#|EOS", "System: |#|\n", default="A chat.", prompt="Assistant:"),
}  # fmt: skip

# ruff: noqa: E501, RUF001
"""Families whose templates do more than write turns: tools, calls, reasoning, dates, documents, namespaces."""

# Tools as JSON lines in the system message, calls in tags, results of a row in one user turn.
HERMES = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% else %}{{- 'DEFAULT' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
BEFORE{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        THOUGHT{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}SWITCH{%- endif %}
"""
LAST_QUERY = """
{%- set ns = namespace(looking=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
"""
SPLIT_THOUGHT = """
        {%- if message.role == "assistant" %}
            {%- set content = message.content %}{%- set thought = '' %}
            {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
            {%- elif '</think>' in content %}
                {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
            {%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
            {{- content.lstrip('\\n') }}
        {%- endif %}
        """
SWITCH = "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"


def hermes(default="", before="", thought="", switch=""):
    text = HERMES.replace("DEFAULT", default).replace("BEFORE", before)
    return text.replace("THOUGHT", thought).replace("SWITCH", switch).lstrip("\n")


# Tools in the first user turn or the system turn, one call a message, a date.
LLAMA = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = IN_USER %}{%- endif %}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}{{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("Tools need a first user message") }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("Only one tool call at once") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for name, value in tool_call.arguments | items %}{{- name + '="' + value + '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- ")" }}
        {%- else %}{{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{%- endif %}
        {{- END }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# Tools before the last user turn, strict turns, ids of nine characters.
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message.role == "user" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}{%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]‗[" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST]‗" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST]‗" + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS]‗[" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- "‗" + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS]‗{"content": ' + content | string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}{%- endif %}
{%- endfor %}
"""

# A macro turns JSON types into Python's; the role `tool` needs the name of the function.
HERMES_2_PRO = """{%- macro json_to_python_type(json_spec) %}
{%- set basic = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic[json_spec.type] is defined %}{{- basic[json_spec.type] }}
{%- elif json_spec.type == "array" %}{{- "list[" + json_to_python_type(json_spec.items) + "]" }}
{%- elif json_spec.type == "object" %}{{- "dict" }}
{%- elif json_spec.type is iterable %}{{- "Union[" }}{%- for t in json_spec.type %}{{- json_to_python_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}
{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{{- bos_token }}{{- '<|im_start|>system\\n<tools> ' }}
{%- for tool in tools %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '{"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
    {%- for name, fields in tool.parameters.properties | items %}{{- name + ": " + json_to_python_type(fields) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
    {{- ") - " + (tool.description or "") }}{{- '", "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}{{- "{}" }}{%- else %}{{- tool.parameters | tojson }}{%- endif %}{{- "}" }}
    {%- if not loop.last %}{{- "\\n" }}{%- endif %}
{%- endfor %}{{- " </tools><|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role in ["user", "system"] or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}{{- '\\n<tool_call>\\n{"arguments": ' + tool_call.function.arguments | tojson + ', "name": "' + tool_call.function.name + '"}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if not message.name is defined %}{{- raise_exception("Tool messages need a name") }}{%- endif %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>tool\\n' }}{%- endif %}
        {{- '<tool_response>\\n{"name": "' + message.name + '", "content": ' + message.content | tojson + '}\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role == "tool" %}{{- '\\n' }}{%- else %}{{- '<|im_end|>' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Tools and calls in XML-like tags, keys of a schema listed by a macro.
QWEN3_CODER = """{% macro extra_keys(dict, handled) %}
{%- if dict is mapping %}{%- for k in dict if k not in handled %}
{%- if dict[k] is mapping or (dict[k] is sequence and dict[k] is not string) %}{{- '\\n<' ~ k ~ '>' ~ (dict[k] | tojson | safe) ~ '</' ~ k ~ '>' }}{%- else %}{{- '\\n<' ~ k ~ '>' ~ (dict[k] | string) ~ '</' ~ k ~ '>' }}{%- endif %}
{%- endfor %}{%- endif %}{% endmacro %}
{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if system_message is defined %}{{- "<|im_start|>system\\n" + system_message }}{%- elif tools is iterable and tools | length > 0 %}{{- "<|im_start|>system\\nYou are Qwen." }}{%- endif %}
{%- if tools is iterable and tools | length > 0 %}{{- "\\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}{{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
        {{- '\\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for name, fields in tool.parameters.properties | items %}{{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}{%- if fields.type is defined %}{{- '\\n<type>' ~ (fields.type | string) ~ '</type>' }}{%- endif %}{{- extra_keys(fields, ['name', 'type']) }}{{- '\\n</parameter>' }}{%- endfor %}
        {%- endif %}
        {{- extra_keys(tool.parameters, ['type', 'properties']) }}{{- '\\n</parameters>\\n</function>' }}
    {%- endfor %}{{- "\\n</tools>" }}
{%- endif %}
{%- if system_message is defined or (tools is iterable and tools | length > 0) %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}{{- '\\n' + message.content | trim + '\\n' }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
            {%- if tool_call.arguments is defined %}{%- for name, value in tool_call.arguments | items %}{{- '<parameter=' + name + '>\\n' }}{%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}{{- value }}{{- '\\n</parameter>\\n' }}{%- endfor %}{%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role in ["user", "system", "assistant"] %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user\\n' }}{%- endif %}
        {{- '<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>\\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- elif loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# State in a namespace over the whole conversation; tool outputs opened and closed by it.
DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% if not thinking is defined %}{% set thinking = enable_thinking | default(false) %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='', is_first_sp=true, is_last_user=false) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false %}{%- set ns.is_first = false %}{%- set ns.is_last_user = true %}{{ '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
{%- if ns.is_last_user %}{{ '<｜Assistant｜>OPEN' }}{%- endif %}{%- set ns.is_last_user = false %}{%- set ns.is_first = false %}{%- set ns.is_tool = false %}
{%- for tool in message['tool_calls'] %}
{%- if not ns.is_first %}{%- if message['content'] is none %}{{ '<｜tool▁calls▁begin｜>' }}{%- else %}{{ message['content'] + '<｜tool▁calls▁begin｜>' }}{%- endif %}{%- set ns.is_first = true %}{%- endif %}
{{ '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] | tojson + '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}{%- endif %}
{%- if message['role'] == 'assistant' and (message['tool_calls'] is not defined or message['tool_calls'] is none) %}
{%- if ns.is_last_user %}{{ '<｜Assistant｜>' }}{%- endif %}{%- set ns.is_last_user = false %}
{%- set content = message['content'] %}{%- if '</think>' in content %}{%- set content = content.split('</think>', 1)[1] %}{%- endif %}{{ content + '<｜end▁of▁sentence｜>' }}{%- set ns.is_tool = false %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_last_user = false %}{%- set ns.is_tool = true %}{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and ns.is_last_user and not ns.is_tool %}{{ '<｜Assistant｜>' }}{%- if not thinking %}{{ 'OPEN' }}{%- else %}{{ '<think>' }}{%- endif %}{% endif %}
"""

# Content as text or parts by a macro; arguments one by one.
GLM_45 = """[gMASK]<sop>
{%- macro visible(content) -%}
{%- if content is string -%}{{- content }}
{%- elif content is iterable and content is not mapping -%}{%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
{%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>{%- endif -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set reasoning_content = '' %}{%- set content = visible(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning_content = m.reasoning_content %}
{%- elif '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}{{ '\\n<think>' + reasoning_content.strip() + '</think>' }}{%- else -%}{{ '\\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}{%- endif -%}
{%- elif m.role == 'system' -%}<|system|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}
"""

# TypeScript-like declarations by recursive macros, channels, the caller's name in the role.
GPT_OSS = """{%- macro type_of(spec) -%}
{%- if spec.enum %}{{- '"' + spec.enum | map('string') | join('" | "') + '"' }}
{%- elif spec.type == "array" %}{{- type_of(spec['items']) + "[]" }}
{%- elif spec.type is iterable and spec.type is not string %}{{- spec.type | join(" | ") }}
{%- elif spec.type in ["integer", "number"] %}{{- "number" }}
{%- elif spec.type == "object" %}{{- "{\\n" }}{%- for name, p in spec.properties.items() %}{{- name }}{%- if name not in (spec.required or []) %}{{- "?" }}{%- endif %}{{- ": " }}{{ type_of(p) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "}" }}
{%- else %}{{- spec.type or "any" }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Today: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + reasoning_effort | default("medium") + "<|end|>" }}
{%- if messages[0].role in ["developer", "system"] %}{%- set developer = messages[0].content %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set developer = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if developer or tools %}{{- "<|start|>developer<|message|>" }}{%- if developer %}{{- "# Instructions\\n\\n" + developer + "\\n\\n" }}{%- endif %}
{%- if tools -%}{{- "# Tools\\n\\nnamespace functions {\\n\\n" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- "// " + (tool.description or '') + "\\ntype " + tool.name + " = (" }}{%- if tool.parameters and tool.parameters.properties %}{{- "_: " }}{{ type_of(tool.parameters) }}{%- endif %}{{- ") => any;\\n\\n" }}{%- endfor %}{{- "} // namespace functions" }}{%- endif -%}{{- "<|end|>" }}{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and message.content is string and "<|channel|>analysis<|message|>" in message.content %}{{- raise_exception("Channel tags belong to the thinking field") }}{%- endif %}
        {%- if message.tool_calls %}
            {%- set tool_call = message.tool_calls[0].function %}
            {%- set later = namespace(answered=false) %}
            {%- for next in loop_messages[loop.index:] %}{%- if next.role == 'assistant' and "tool_calls" not in next %}{%- set later.answered = true %}{%- endif %}{%- endfor %}
            {%- if message.content and message.thinking %}{{- raise_exception("Content and thinking exclude each other") }}
            {%- elif message.content and not later.answered %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking and not later.answered %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}{{- tool_call.arguments | tojson }}{{- "<|call|>" }}
            {%- set last_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last_call.name = none %}{%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_call.name is none %}{{- raise_exception("A tool message needs a call before it") }}{%- endif %}
        {{- "<|start|>functions." + last_call.name }}{{- " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

# The named template for tools: a preamble, Python-like signatures, an action list as JSON.
COMMAND_R_TOOLS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = 'You help people.' %}{% endif %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># Preamble\\n' }}{{ system_message }}{{ '\\n\\n## Available Tools\\n' }}
{%- for tool in tools %}{%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
{{ '\\n\\n```python\\ndef ' + tool.name + '(' }}{% for name, p in tool.parameters.properties | items %}{{ name }}: {% if p.type == 'string' %}str{% elif p.type == 'integer' %}int{% else %}Any{% endif %}{% if name not in tool.parameters.required %} = None{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}) -> List[Dict]:
    \"\"\"{{ tool.description | replace("'", '"') }}\"\"\"
    pass
```{% endfor %}{{ '<|END_OF_TURN_TOKEN|>' }}
{%- for message in loop_messages %}{% set content = message['content'] %}
{%- if message.role == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'assistant' and message.tool_calls is defined %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Action: ```json\\n[\\n' }}{% for call in message.tool_calls %}{{ '{"tool_name": ' ~ call.function.name | tojson ~ ', "parameters": ' ~ call.function.arguments | tojson(indent=4) ~ '}' }}{% if not loop.last %}{{ ',\\n' }}{% endif %}{% endfor %}{{ '\\n]```<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'tool' %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\\n' }}{{ content }}{{ '</results><|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}
"""
KIMI_K2 = """{% if tools -%}{{ '<|im_system|>tool_declare<|im_middle|>' -}}{{- tools | tojson -}}{{ '<|im_end|>' -}}{%- endif -%}
{%- for message in messages -%}
{%- if loop.first and messages[0]['role'] != 'system' -%}{{ '<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>' }}{%- endif -%}
{%- set name = message.get('name', message['role']) -%}
{%- if message['role'] == 'system' -%}<|im_system|>{{ name }}<|im_middle|>{%- elif message['role'] == 'user' -%}<|im_user|>{{ name }}<|im_middle|>{%- elif message['role'] == 'assistant' -%}<|im_assistant|>{{ name }}<|im_middle|>{%- else -%}<|im_system|>{{ name }}<|im_middle|>{%- endif -%}
{%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
{%- if message['content'] -%}{{ message['content'] }}{%- endif -%}<|tool_calls_section_begin|>
{%- for call in message['tool_calls'] -%}{%- set id = call['id'].split(':')[-1] -%}<|tool_call_begin|>functions.{{ call['function']['name'] }}:{{ id }}<|tool_call_argument_begin|>{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>{%- endfor -%}<|tool_calls_section_end|>
{%- elif message['role'] == 'tool' -%}## Return of {{ message.tool_call_id }}
{{ message['content'] }}
{%- elif message['content'] is string -%}{{ message['content'] }}
{%- elif message['content'] is not none -%}{% for part in message['content'] -%}{% if part['type'] == 'image' or 'image' in part -%}<|media|>{% else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
"""
GRANITE_33 = """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system_message = "Today's Date: " + strftime_now('%B %d, %Y') + ".\\nYou are Granite." %}
{%- if tools and documents %}{%- set system_message = system_message + " Tools and documents." %}{%- elif tools %}{%- set system_message = system_message + " Tools." %}{%- elif documents %}{%- set system_message = system_message + " Documents." %}{%- endif %}
{%- if 'citations' in (controls | default({})) %}{%- set system_message = system_message + '\\n\\nCite.' %}{%- endif %}
{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>available_tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}{%- for document in documents %}{{- '<|start_of_role|>document {"document_id": "' + document['doc_id'] | string + '"}<|end_of_role|>\\n' }}{{- document['text'] }}{{- '<|end_of_text|>\\n' }}{%- endfor %}{%- endif %}
{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}{%- endfor %}
"""
SMOLLM3 = """{%- set mode = "/think" if enable_thinking | default(true) else "/no_think" -%}
{%- if messages[0].role == "system" -%}{%- set system_message = messages[0].content -%}
{%- if "/no_think" in system_message -%}{%- set mode = "/no_think" -%}{%- elif "/think" in system_message -%}{%- set mode = "/think" -%}{%- endif -%}
{%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if "/system_override" in (system_message | default("")) -%}{{- custom.replace("/system_override", "").rstrip() -}}
{%- else -%}{{- "## Metadata\\n\\nToday: " ~ strftime_now("%d %B %Y") ~ "\\nMode: " ~ mode ~ "\\n\\n## Instructions\\n\\n" -}}{%- if custom -%}{{- custom + "\\n\\n" -}}{%- elif mode == "/think" -%}{{- "Think first.\\n\\n" -}}{%- endif -%}
{%- if xml_tools or python_tools or tools -%}{{- "### Tools\\n\\n" -}}{%- set ns = namespace(text="<tools>\\n") -%}{%- for tool in xml_tools or tools -%}{%- set ns.text = ns.text ~ (tool | string) ~ "\\n" -%}{%- endfor -%}{{- ns.text + "</tools>\\n\\n" -}}{%- endif -%}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}{%- set content = message.content if message.content is string else "" -%}
{%- if message.role == "user" -%}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
{%- elif message.role == "assistant" -%}{% generation %}{%- if mode == "/think" -%}{{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{%- else -%}{{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{%- endif -%}{% endgeneration %}
{%- elif message.role == "tool" -%}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{%- if mode == "/think" -%}{{ "<|im_start|>assistant\\n" }}{%- else -%}{{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}{%- endif -%}{%- endif -%}
"""

WHOLE = {
    "Qwen2.5": hermes("You are Qwen.\\n\\n"),
    "Qwen2.5-Coder": hermes("You are Qwen, a coder.\\n\\n"),
    "QwQ-32B": hermes("", thought="{%- if '</think>' in message.content and message.role == 'assistant' %}{%- set message = {'role': 'assistant', 'content': message.content.split('</think>')[-1].lstrip('\\n')} %}{%- endif %}", switch="{{- '<think>\\n' }}"),
    "Qwen3": hermes(before=LAST_QUERY, thought=SPLIT_THOUGHT, switch=SWITCH),
    "Qwen3 2507 instruct": hermes(before=LAST_QUERY),
    "Qwen3-Coder": QWEN3_CODER,
    "Llama 3.1": LLAMA.replace("END", '"<|eom_id|>" if builtin_tools is defined else "<|eot_id|>"').replace("IN_USER", "true"),
    "Llama 3.2": LLAMA.replace("END", '"<|eot_id|>"').replace("IN_USER", "true"),
    "Llama 3 Groq tool use": LLAMA.replace("END", '"<|eot_id|>"').replace("IN_USER", "false"),
    "Mistral Nemo": MISTRAL.replace("‗", ""),
    "Mistral 7B v0.3": MISTRAL.replace("‗", " "),
    "Hermes 2 Pro, tool_use": HERMES_2_PRO,
    "DeepSeek V3.1": DEEPSEEK.replace("OPEN", "</think>"),
    "DeepSeek V3 0324": DEEPSEEK.replace("OPEN", ""),
    "GLM-4.5": GLM_45,
    "gpt-oss": GPT_OSS,
    "Command R, tool_use": COMMAND_R_TOOLS,
    "Kimi K2": KIMI_K2,
    "Granite 3.3": GRANITE_33,
    "SmolLM3": SMOLLM3,
}  # fmt: skip

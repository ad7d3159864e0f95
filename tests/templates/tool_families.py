# ruff: noqa: E501, RUF001
"""Families whose templates write reasoning and tool calls in markup of their own.

As in families.py: written for these tests from what each family does, with the constructs that its
template uses. The texts are not the published ones.
"""

# Elements for arguments, reasoning kept after the last question, refusals on order.
QWEN_35 = """
{%- macro shown(content, in_system=false) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if 'image' in part or 'image_url' in part or part.type == 'image' %}
                {%- if in_system %}{{- raise_exception('A system message has no images.') }}{%- endif %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}{{- part.text }}
            {%- else %}{{- raise_exception('Unexpected part.') }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('Unexpected content.') }}{%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('No messages.') }}{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>" }}{{- '\\n\\nCall as <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}
        {%- set content = shown(messages[0].content, true) | trim %}
        {%- if content %}{{- '\\n\\n' + content }}{%- endif %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + shown(messages[0].content, true) | trim + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(looking=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == "user" %}
        {%- set content = shown(message.content) | trim %}
        {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}{%- set ns.looking = false %}{%- set ns.last = index %}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.looking %}{{- raise_exception('No question was found.') }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}{{- raise_exception('A system message comes first.') }}{%- endif %}
    {%- elif message.role == "user" %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- set thought = thought | trim %}
        {%- if loop.index0 > ns.last %}{{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for call in message.tool_calls %}
                {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
                {%- if loop.first %}
                    {%- if content | trim %}{{- '\\n\\n<tool_call>\\n<function=' + call.name + '>\\n' }}{%- else %}{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}{%- endif %}
                {%- else %}{{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}{%- endif %}
                {%- if call.arguments is defined %}
                    {%- for name, value in call.arguments | items %}
                        {{- '<parameter=' + name + '>\\n' }}
                        {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                        {{- value }}{{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- elif loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{- raise_exception('Unexpected role.') }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""

# A table of budgets, signatures as Python, a loop with a condition, parts that keep their line feeds.
SEED_OSS = """{%- set begin = '<seed:bos>' -%}{%- set end = '<seed:eos>' -%}
{%- if not thinking_budget is defined %}
{%- set thinking_budget = -1 -%}
{%- endif -%}
{%- set steps = {0: 0, 512: 128, 1024: 256, 16384: 1024} -%}
{%- set ns = namespace(interval = None) -%}
{%- for k, v in steps | dictsort -%}
    {%- if ns.interval is none and thinking_budget <= k -%}{%- set ns.interval = v -%}{%- endif -%}
{%- endfor -%}
{%- if ns.interval is none -%}{%- set ns.interval = steps[16384] -%}{%- endif -%}
{%- if messages[0]["role"] == "system" %}{%- set rules_text = messages[0]["content"] %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- if not tools is defined or tools is none %}{%- set tools = [] %}{%- endif %}
{%- macro kind(t) -%}{%- if t == "string" -%}str{%- elif t in ("number", "integer") -%}int{%- elif t == "boolean" -%}bool{%- else -%}Any{%- endif -%}{%- endmacro -%}
{%- if rules_text is defined %}
{{ begin + "system\\n" + rules_text }}
{%- elif tools is iterable and tools | length > 0 %}
{{ begin + "system\\nYou may call functions." }}
{%- endif %}
{%- for item in tools if item.type == "function" %}

Function:
def {{ item.function.name }}(
{%- for name, spec in item.function.parameters.properties.items() %}
        {{- name }}: {{ kind(spec.type) }}{% if not loop.last %},{% endif %}
{%- endfor %}):
    \"\"\"
    {{ item.function.description | trim }}
    {%- if item.function.parameters.properties %}
    Args:
    {%- for name, spec in item.function.parameters.properties.items() %}

    - {{ name }}{%- if name in item.function.parameters.required %} [needed]{% else %} [free]{% endif %}:{{- " " ~ (spec.description or "") }}
    {%- endfor %}
    {%- endif %}

    \"\"\"
{%- endfor %}
{%- if tools is iterable and tools | length > 0 %}

{{"Call as:\\n<seed:tool_call>\\n<function=name>\\n<parameter=key>value</parameter>\\n</function>\\n</seed:tool_call>\\n"}}
{%- endif %}
{%- if rules_text is defined or tools is iterable and tools | length > 0 %}
{{ end }}
{%- endif %}
{%- if thinking_budget == 0 %}
{{ begin+"system" }}
{{ "Answer at once." }}
{{ end }}
{%- elif not thinking_budget == -1 %}
{{ begin+"system" }}
{{ "Think for "}}{{thinking_budget}}{{" tokens, with a note every "}}{{ns.interval}}{{"."}}
{{ end }}
{%- endif %}
{%- for message in turns %}
{%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
{{ begin + message.role }}
{%- if message.reasoning_content is defined and message.reasoning_content is string and message.reasoning_content | trim | length > 0 %}
{{ "\\n" + "<seed:think>" + message.reasoning_content | trim + "</seed:think>" }}
{%- endif %}
{%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
{{ "\\n" + message.content | trim + "\\n" }}
{%- endif %}
{%- for call in message.tool_calls %}
{%- if call.function is defined %}{% set call = call.function %}{% endif %}
{{ "\\n<seed:tool_call>\\n<function=" + call.name + ">\\n" }}
{%- if call.arguments is defined %}
{%- for name, value in call.arguments | items %}
{{ "<parameter=" + name + ">" }}
{%- set value = value if value is string else value | string %}
{{ value+"</parameter>\\n" }}
{%- endfor %}
{%- endif %}
{{ "</function>\\n</seed:tool_call>" }}
{%- endfor %}
{{ end }}
{%- elif message.role == "assistant" %}
{{ begin + message.role }}
{%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
{{ "\\n" + message.content | trim + end }}
{%- endif %}
{%- else %}
{{ begin + message.role + "\\n" + message.content + end }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{ begin+"assistant\\n" }}
{%- if thinking_budget == 0 %}
{{ "<seed:think><seed:cot_budget_reflect>" }}
{%- endif %}
{%- endif %}"""

# Macros, results that need a call before them, reasoning after the last question only.
MINIMAX_M2 = """{%- macro listed(tools) -%}
{%- for tool in tools -%}
<tool>{{ tool.function | tojson | string }}</tool>
{% endfor -%}
{%- endmacro -%}
{%- macro visible(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is iterable and content is not mapping -%}{%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- macro opening(message) -%}
    {%- if message and message.content -%}{{- visible(message.content) }}{%- else -%}
        {%- if identity is not defined -%}{%- set identity = "You help." -%}{%- endif -%}{{- identity }}
    {%- endif -%}
    {%- if message and message.current_date -%}{{- '\\n' ~ 'Date: ' + message.current_date }}{%- endif -%}
{%- endmacro -%}
{%- set rules_text = none -%}{%- set rest = messages -%}
{%- if messages and messages[0].role == "system" -%}{%- set rules_text = messages[0] -%}{%- set rest = messages[1:] -%}{%- endif -%}
{%- set ns = namespace(last_question=-1) %}
{% for m in rest %}{%- if m.role == 'user' %}{% set ns.last_question = loop.index0 -%}{%- endif %}{%- endfor %}
{{- ']~!b[' ~ ']~b]system' ~ '\\n' }}{{- opening(rules_text) }}
{%- if tools -%}{{- '\\n\\n# Tools\\n\\n<tools>\\n' }}{{- listed(tools) }}{{- '</tools>\\n\\n' }}
{{- '\\n' ~ '<minimax:tool_call>' }}
<invoke name="name">
<parameter name="key">value</parameter>
</invoke>
{{- '\\n' ~ '</minimax:tool_call>' }}
{%- endif -%}
{{- '[e~[\\n' }}
{%- set called = namespace(name=none) -%}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {{- ']~b]ai' ~ '\\n' }}
        {%- set thought = '' %}{%- set content = visible(message.content) %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].strip('\\n').split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].strip('\\n') %}
        {%- endif %}
        {%- if thought and loop.index0 > ns.last_question -%}{{- '<think>' ~ '\\n' ~ thought ~ '\\n' ~ '</think>' ~ '\\n\\n' }}{%- endif -%}
        {%- if content -%}{{- content }}{%- endif -%}
        {%- if message.tool_calls -%}
            {{- '\\n' ~ '<minimax:tool_call>' ~ '\\n' }}
            {%- for call in message.tool_calls -%}
                {%- if call.function %}{%- set call = call.function %}{%- endif %}
                {{- '<invoke name="' + call.name + '">' }}
                {% set given = call.arguments %}
                {%- for k, v in given.items() %}
                {{- '<parameter name="' + k + '">' }}{{- v | tojson(ensure_ascii=False) if v is not string else v }}{{- '</parameter>' }}
                {% endfor %}
                {{- '</invoke>' ~ '\\n' }}
            {%- endfor -%}
            {{- '</minimax:tool_call>'}}{%- set called.name = message.tool_calls[-1].name -%}
        {%- else -%}{%- set called.name = none -%}{%- endif -%}
        {{- '[e~[' ~ '\\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if called.name is none -%}{{- raise_exception("A result needs a call before it.") }}{%- endif -%}
        {%- if loop.first or (rest[loop.index0 - 1].role != 'tool') -%}{{- ']~b]tool' }}{%- endif -%}
        {%- if message.content is string -%}{{- '\\n<response>' }}{{- message.content }}{{- '</response>' }}
        {%- else -%}{%- for tr in message.content -%}{{- '\\n<response>' }}{{- tr.output if tr.output is defined else (tr.text if tr.type == 'text' and tr.text is defined else tr) }}{{- '\\n</response>' }}{%- endfor -%}{%- endif -%}
        {%- if loop.last or (rest[loop.index0 + 1].role != 'tool') -%}{{- '[e~[\\n' -}}{%- endif -%}
    {%- elif message.role == 'user' -%}{{- ']~b]user' ~ '\\n' }}{{- visible(message.content) }}{{- '[e~[' ~ '\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ']~b]ai' ~ '\\n' ~ '<think>' ~ '\\n' }}{%- endif -%}
"""

# Messages of a role are counted first; keywords are collected in a namespace; `.get` with none.
OLMO_3 = """{%- set ruled = messages | selectattr('role', 'equalto', 'system') | list | length > 0 -%}
{%- if not ruled -%}{{- '<|im_start|>system\\nYou call functions. ' -}}
{%- if tools is none or (tools | length) == 0 -%}{{- 'There are none. <functions></functions><|im_end|>\\n' -}}
{%- else -%}{{- 'Call within <function_calls></function_calls>. <functions>' -}}{{- tools | tojson -}}{{- '</functions><|im_end|>\\n' -}}{%- endif -%}{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{{- '<|im_start|>system\\n' + message['content'] -}}
{%- if tools is not none -%}{{- '<functions>' -}}{{- tools | tojson -}}{{- '</functions>' -}}{%- elif message.get('functions', none) is not none -%}{{- ' <functions>' + message['functions'] + '</functions>' -}}{%- endif -%}{{- '<|im_end|>\\n' -}}
{%- elif message['role'] == 'user' -%}{%- if message.get('functions', none) is not none -%}{{- '<|im_start|>user\\n' + message['content'] + '\\n<functions>' + message['functions'] + '</functions><|im_end|>\\n' -}}{%- else -%}{{- '<|im_start|>user\\n' + message['content'] + '<|im_end|>\\n' -}}{%- endif -%}
{%- elif message['role'] == 'assistant' -%}{{- '<|im_start|>assistant\\n' -}}
{%- if message.get('content', none) is not none -%}{{- message['content'] -}}{%- endif -%}
{%- if message.get('function_calls', none) is not none -%}{{- '<function_calls>' + message['function_calls'] + '</function_calls>' -}}
{%- elif message.get('tool_calls', none) is not none -%}{{- '<function_calls>' -}}
{%- for call in message['tool_calls'] -%}
{%- if call is mapping and call.get('function', none) is not none -%}
{%- set args = call['function']['arguments'] -%}{%- set ns = namespace(list=[]) -%}
{%- for key, value in args.items() -%}{%- set ns.list = ns.list + [key ~ '=' ~ (value | tojson)] -%}{%- endfor -%}
{{- call['function']['name'] + '(' + ns.list | join(', ') + ')' -}}{%- if not loop.last -%}{{ '\\n' }}{%- endif -%}
{%- endif -%}{%- endfor -%}{{- '</function_calls>' -}}{%- endif -%}
{%- if not loop.last -%}{{- '<|im_end|>' + '\\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}
{%- elif message['role'] in ('environment', 'tool') -%}{{- '<|im_start|>environment\\n' + message['content'] + '<|im_end|>\\n' -}}{%- endif -%}
{%- if loop.last and add_generation_prompt -%}{{- '<|im_start|>assistant\\nOPEN' -}}{%- endif -%}
{%- endfor -%}
"""

# Parts sorted by their type, thinking parts, named calls, roles in turn except for calls.
MINISTRAL_3 = """{%- set usual = 'DEFAULT' %}{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' -}}
    {%- if messages[0]['content'] is string %}{{- messages[0]['content'] -}}
    {%- else %}{%- for part in messages[0]['content'] %}{%- if part['type'] == 'text' %}{{- part['text'] }}{%- elif part['type'] == 'thinking' %}{{- '[THINK]' + part['thinking'] + '[/THINK]' }}{%- else %}{{- raise_exception('Only text and thinking.') }}{%- endif %}{%- endfor %}{%- endif %}
    {{- '[/SYSTEM_PROMPT]' -}}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- if usual != '' %}{{- '[SYSTEM_PROMPT]' + usual + '[/SYSTEM_PROMPT]' }}{%- endif %}{%- endif %}
{%- set shown_tools = '' %}{%- set any_tools = false %}
{%- if tools is defined and tools is not none and tools | length > 0 %}{%- set any_tools = true %}{%- set shown_tools = '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' %}{{- shown_tools }}{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in turns %}
    {%- if message.role == 'user' or (message.role == 'assistant' and (message.tool_calls is not defined or message.tool_calls is none or message.tool_calls | length == 0)) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}{{- raise_exception('Roles must alternate.') }}{%- endif %}{%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in turns %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}
        {%- elif message['content'] | length > 0 %}{{- '[INST]' }}
            {%- if message['content'] | length == 2 %}{%- set parts = message['content'] | sort(attribute='type') %}{%- else %}{%- set parts = message['content'] %}{%- endif %}
            {%- for part in parts %}{%- if part['type'] == 'text' %}{{- part['text'] }}{%- elif part['type'] in ['image', 'image_url'] %}{{- '[IMG]' }}{%- else %}{{- raise_exception('Unknown part.') }}{%- endif %}{%- endfor %}{{- '[/INST]' }}
        {%- else %}{{- raise_exception('A user says something.') }}{%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- if (message['content'] is none or message['content'] == '' or message['content'] | length == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or message['tool_calls'] | length == 0) %}{{- raise_exception('Text or calls.') }}{%- endif %}
        {%- if message['content'] is string %}{{- message['content'] }}
        {%- elif message['content'] | length > 0 %}{%- for part in message['content'] %}{%- if part['type'] == 'text' %}{{- part['text'] }}{%- elif part['type'] == 'thinking' %}{{- '[THINK]' + part['thinking'] + '[/THINK]' }}{%- endif %}{%- endfor %}{%- endif %}
        {%- if message['tool_calls'] is defined and message['tool_calls'] is not none and message['tool_calls'] | length > 0 %}
            {%- for tool in message['tool_calls'] %}
                {%- set arguments = tool['function']['arguments'] %}
                {%- if arguments is not string %}{%- set arguments = arguments | tojson | safe %}{%- elif arguments == '' %}{%- set arguments = '{}' %}{%- endif %}
                {{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}
            {%- endfor %}
        {%- endif %}
        {{- eos_token }}
    {%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS]' + message['content'] | string + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Unknown role ' + message['role'] + '.') }}{%- endif %}
{%- endfor %}
"""

# Tools in the system turn, each in tags; the end of text where nothing is to follow.
PHI_4_MINI = """{%- if messages[0]["role"] == "system" %}
    {%- set rules_text = messages[0]["content"] %}
{% elif tools is defined -%}
    {%- set rules_text = "" -%}
{%- endif %}
{%- if rules_text is defined -%}{{- '<|system|>' + rules_text -}}
    {%- if tools is defined and tools -%}
        {% for tool in tools %}{{- '<|tool|>' + (tool['function'] | tojson) + '<|/tool|>' -}}{% endfor %}
        {%- if '<|tool_call|>' not in rules_text -%}{{- 'Call as <|tool_call|>[{"name": "n", "arguments": {}}]<|/tool_call|>' -}}{%- endif -%}
    {%- endif -%}
    {{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}{{- '<|tool_response|>' + (message['content'] | tojson) + '<|end|>' -}}
    {%- elif message['role'] != 'system' -%}{{- '<|' + message['role'] + '|>' -}}
        {%- if message.content -%}{{- message['content'] -}}{%- endif -%}
        {%- for call in message.tool_calls -%}{{- '<|tool_call|>[' + (call['function'] | tojson) + ']<|/tool_call|>' -}}{%- endfor -%}
        {{- '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- else -%}{{- eos_token -}}{%- endif -%}"""

# Calls in fences, results joined, flags in a namespace that say what came before.
DEEPSEEK_R1 = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(begun=false, reads=false, new_results=true, rules='', first_rule=true, asked=false) -%}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.first_rule %}{% set ns.rules = ns.rules + message['content'] %}{% set ns.first_rule = false %}{%- else %}{% set ns.rules = ns.rules + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor -%}
{%- if tools is defined and tools is not none %}{% set listing = namespace(text='## Tools\\n') %}{% for tool in tools %}{% set listing.text = listing.text + '\\n### ' + tool.function.name + '\\n' + (tool.function.parameters | tojson) %}{% endfor %}{% set ns.rules = ns.rules + '\\n\\n' + listing.text %}{% endif -%}
{{- bos_token }}{{- ns.rules }}
{%- for message in messages %}
{%- set content = message['content'] %}
{%- if message['role'] == 'user' %}{%- set ns.reads = false -%}{%- set ns.begun = false -%}{%- set ns.asked = true -%}{{'<｜User｜>' + content + '<｜Assistant｜>'}}{%- endif %}
{%- if message['role'] == 'assistant' %}{%- if content is not none and '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{% endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
{%- set ns.asked = false -%}{%- if ns.reads %}{{- '<｜tool▁outputs▁end｜>'}}{%- endif %}{%- set ns.begun = false %}{%- set ns.reads = false -%}{%- set ns.new_results = true %}
{%- for tool in message['tool_calls'] %}{%- set arguments = tool['function']['arguments'] if tool['function']['arguments'] is string else tool['function']['arguments'] | tojson %}
{%- if not ns.begun %}{{- (content or '') + '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + arguments + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- set ns.begun = true -%}
{%- else %}{{- '\\n' + '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + arguments + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endif %}{%- endfor %}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}
{%- endif %}
{%- if message['role'] == 'assistant' and (message['tool_calls'] is not defined or message['tool_calls'] is none) %}{%- set ns.asked = false -%}
{%- if ns.reads %}{{- '<｜tool▁outputs▁end｜>' + content + '<｜end▁of▁sentence｜>'}}{%- set ns.reads = false -%}{%- else %}{{- content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.asked = false -%}{%- set ns.reads = true -%}
{%- if ns.new_results %}{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + content + '<｜tool▁output▁end｜>'}}{%- set ns.new_results = false %}{%- else %}{{- '\\n<｜tool▁output▁begin｜>' + content + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endif %}
{%- endfor -%}
{%- if ns.reads %}{{- '<｜tool▁outputs▁end｜>'}}{%- endif %}{%- if add_generation_prompt and not ns.asked and not ns.reads %}{{- '<｜Assistant｜>'}}{%- endif %}
"""

# Nothing between the parts of a call, reasoning that the prompt opens or closes, and that a switch keeps.
GLM_47 = """[gMASK]<sop>
{%- macro shown(content) -%}
{%- if content is string -%}{{- content }}
{%- elif content is iterable and content is not mapping -%}{%- for part in content -%}{%- if part is mapping and part.type == 'text' -%}{{- part.text }}{%- elif part is string -%}{{- part }}{%- endif -%}{%- endfor -%}
{%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
Call: <tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>{%- endif -%}
{%- set ns = namespace(last=-1, thought='') %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 -%}{%- endif %}{%- endfor %}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<|user|>' + shown(m.content) -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set ns.thought = '' %}{%- set content = shown(m.content) %}
{%- if m.reasoning_content is string %}{%- set ns.thought = m.reasoning_content %}
{%- elif '</think>' in content %}{%- set ns.thought = content.split('</think>')[0].split('<think>')[-1] %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{%- if ((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last) and ns.thought -%}{{ '<think>' + ns.thought.strip() + '</think>' }}{%- else -%}{{ '</think>' }}{%- endif -%}
{%- if content.strip() -%}{{ content.strip() }}{%- endif -%}
{%- for tc in m.tool_calls or [] -%}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif -%}
{{- '<tool_call>' + tc.name -}}
{%- for k, v in tc.arguments.items() -%}<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|observation|>{%- endif -%}
{{- '<tool_response>' + shown(m.content) + '</tool_response>' -}}
{%- elif m.role == 'system' -%}{{- '<|system|>' + shown(m.content) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' -}}{%- endif -%}
"""

# Documents, controls in the role's name, reasoning on request.
GRANITE_31 = """{%- if messages[0]['role'] == 'system' %}{%- set rules_text = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}{%- set rules_text = "Knowledge: 2024.\\nToday: " + strftime_now('%B %d, %Y') + ".\\nYou are Granite." %}
    {%- if tools and documents %}{%- set rules_text = rules_text + " Answer with <|tool_call|> and a list, from documents." %}
    {%- elif tools %}{%- set rules_text = rules_text + " Answer with <|tool_call|> and a list of calls." %}
    {%- elif documents %}{%- set rules_text = rules_text + " From documents." %}
    {%- elif thinking %}{%- set rules_text = rules_text + " Think first: <think></think><response></response>." %}{%- endif %}
    {%- if 'citations' in (controls | default({})) and documents %}{%- set rules_text = rules_text + '\\n\\nCite.' %}{%- endif %}
    {%- set turns = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + rules_text + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}{{- '<|start_of_role|>documents<|end_of_role|>' }}{%- for document in documents %}{{- 'Document ' + loop.index0 | string + '\\n' }}{{- document['text'] }}{%- if not loop.last %}{{- '\\n\\n'}}{%- endif%}{%- endfor %}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- for message in turns %}
    {%- if message.tool_calls %}{{- '<|start_of_role|>assistant<|end_of_role|><|tool_call|>' + message.tool_calls | map(attribute='function') | list | tojson + '<|end_of_text|>\\n' }}
    {%- else %}{{- '<|start_of_role|>' + ('tool_response' if message['role'] == 'tool' else message['role']) + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}{%- endif %}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}
{%- endfor %}
"""

# Calls in a notation of its own, written by macros that call themselves; results inside the turn that called.
GEMMA_4 = """{%- macro shown(value, quoted_keys=True) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}{{- '{' -}}
        {%- set ns = namespace(some=false) -%}
        {%- for key, inner in value | dictsort -%}
            {%- if ns.some %},{% endif -%}{%- set ns.some = true -%}
            {%- if quoted_keys -%}{{- '<|"|>' + key + '<|"|>' -}}{%- else -%}{{- key -}}{%- endif -%}:{{- shown(inner, quoted_keys=quoted_keys) -}}
        {%- endfor -%}{{- '}' -}}
    {%- elif value is sequence -%}{{- '[' -}}{%- for inner in value -%}{{- shown(inner, quoted_keys=quoted_keys) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- ']' -}}
    {%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
{%- macro listed(properties, needed, left_out=['description', 'type', 'properties', 'required']) -%}
    {%- set ns = namespace(some=false) -%}
    {%- for key, spec in properties | dictsort if key not in left_out -%}
        {%- if ns.some %},{% endif -%}{%- set ns.some = true -%}
        {{ key }}:{
        {%- if spec['description'] -%}description:<|"|>{{ spec['description'] }}<|"|>,{%- endif -%}
        {%- if spec['enum'] -%}enum:{{ shown(spec['enum']) }},{%- endif -%}
        {%- set kind = spec['type'] if spec['type'] is string else spec['type'][0] -%}
        {%- if kind | upper == 'OBJECT' and spec['properties'] is defined -%}properties:{ {{- listed(spec['properties'], spec['required'] | default([])) -}} },
        {%- elif kind | upper == 'ARRAY' and spec['items'] is mapping -%}items:{%- for name, inner in spec['items'] | dictsort -%}{%- if name == 'type' and inner is not string -%}{{- inner | map('upper') | list | join('/') -}}{%- else -%}{{- name ~ ':' ~ shown(inner) -}}{%- endif -%}{%- endfor -%},{%- endif -%}
        type:<|"|>{{ kind | upper }}<|"|>}
    {%- endfor -%}
{%- endmacro -%}
{%- macro unthought(text) -%}
    {%- set ns = namespace(kept='') -%}
    {%- for part in text.split('<channel|>') -%}{%- set ns.kept = ns.kept + (part.split('<|channel>')[0] if '<|channel>' in part else part) -%}{%- endfor -%}
    {{- ns.kept | trim -}}
{%- endmacro -%}
{%- macro result(name, value) -%}{{- '<|tool_response>response:' + name + '{' -}}
    {%- if value is mapping -%}{%- for key, inner in value | dictsort -%}{{- key -}}:{{- shown(inner, quoted_keys=False) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}
    {%- else -%}{{- 'value:' + shown(value, quoted_keys=False) -}}{%- endif -%}{{- '}<tool_response|>' -}}
{%- endmacro -%}
{%- set ns = namespace(before=None, asked=-1) -%}{%- set turns = messages -%}{{- bos_token -}}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}{{- messages[0]['content'] | trim -}}{%- set turns = messages[1:] -%}{%- endif -%}
    {%- for tool in tools or [] %}{{- '<|tool>declaration:' -}}{{- tool['function']['name'] -}}{%- set wanted = tool['function']['parameters'] -%}{
        {%- if tool['function']['description'] -%}description:<|"|>{{- tool['function']['description'] -}}<|"|>{%- endif -%}
        {%- if wanted and wanted['properties'] -%},parameters:{properties:{ {{- listed(wanted['properties'], wanted['required']) -}} },required:[{%- for name in wanted['required'] -%}<|"|>{{- name -}}<|"|>{{- ',' if not loop.last -}}{%- endfor -%}]}{%- endif -%}
    {{- '}<tool|>' -}}{%- endfor %}
    {{- '<turn|>\\n' -}}
{%- endif %}
{%- for i in range(turns | length) -%}{%- if turns[i]['role'] == 'user' -%}{%- set ns.asked = i -%}{%- endif -%}{%- endfor -%}
{%- for message in turns -%}{%- if message['role'] != 'tool' -%}
    {%- set ns.before = None -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {%- set last = namespace(role=None, found=false) -%}
    {%- if loop.index0 > 0 -%}{%- for j in range(loop.index0 - 1, -1, -1) -%}{%- if not last.found and turns[j]['role'] != 'tool' -%}{%- set last.role = turns[j]['role'] -%}{%- set last.found = true -%}{%- endif -%}{%- endfor -%}{%- endif -%}
    {%- if not (role == 'model' and last.role == 'assistant') -%}{{- '<|turn>' + role + '\\n' }}{%- endif -%}
    {%- set thought = message.get('reasoning') or message.get('reasoning_content') -%}
    {%- if thought and loop.index0 > ns.asked and message.get('tool_calls') -%}{{- '<|channel>thought\\n' + thought + '\\n<channel|>' -}}{%- endif -%}
    {%- set answered = namespace(some=false, over=false) -%}
    {%- for call in message['tool_calls'] or [] -%}
        {%- set function = call['function'] -%}{{- '<|tool_call>call:' + function['name'] + '{' -}}
        {%- if function['arguments'] is mapping -%}{%- set args = namespace(some=false) -%}
            {%- for key, value in function['arguments'] | dictsort -%}{%- if args.some %},{% endif -%}{%- set args.some = true -%}{{- key -}}:{{- shown(value, quoted_keys=False) -}}{%- endfor -%}
        {%- elif function['arguments'] is string -%}{{- function['arguments'] -}}{%- endif -%}
        {{- '}<tool_call|>' -}}{%- set ns.before = 'call' -%}
    {%- endfor -%}
    {%- if message.get('tool_calls') -%}{%- for k in range(loop.index0 + 1, turns | length) -%}
        {%- if answered.over -%}
        {%- elif turns[k]['role'] != 'tool' -%}{%- set answered.over = true -%}
        {%- else -%}
            {%- set named = namespace(name=turns[k].get('name') | default('unknown')) -%}
            {%- for call in message['tool_calls'] -%}{%- if call.get('id') == turns[k].get('tool_call_id') -%}{%- set named.name = call['function']['name'] -%}{%- endif -%}{%- endfor -%}
            {{- result(named.name, turns[k].get('content')) -}}{%- set answered.some = true -%}{%- set ns.before = 'result' -%}
        {%- endif -%}
    {%- endfor -%}{%- endif -%}
    {%- if message['content'] is string -%}{%- if role == 'model' -%}{{- unthought(message['content']) -}}{%- else -%}{{- message['content'] | trim -}}{%- endif -%}
    {%- elif message['content'] is sequence -%}{%- for part in message['content'] -%}{%- if part['type'] == 'text' -%}{{- unthought(part['text']) if role == 'model' else part['text'] | trim -}}{%- elif part['type'] == 'image' -%}{{- '<|image|>' -}}{%- endif -%}{%- endfor -%}{%- endif -%}
    {%- if ns.before == 'call' and not answered.some -%}{{- '<|tool_response>' -}}{%- elif not (answered.some and not message.get('content')) -%}{{- '<turn|>\\n' -}}{%- endif -%}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt and ns.before not in ['call', 'result'] -%}{{- '<|turn>model\\n' -}}{%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}{%- endif -%}
"""

# Tools in the first user turn, content as text or parts, what was said before a call between two marks.
LLAMA_4 = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- macro asked(tools) %}{{- 'Answer with {"name": NAME, "parameters": ARGUMENTS} to call one.\\n\\n' }}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endmacro %}
{%- macro shown(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}{%- for part in content %}{%- if part['type'] == 'image' %}{{- '<|image|>' }}{%- elif part['type'] == 'text' %}{{- part['text'] }}{%- endif %}{%- endfor %}{%- endif %}
{%- endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set rules_text = messages[0]['content'] | trim %}{%- else %}{%- set rules_text = messages[0]['content'][0]['text'] | trim %}{%- endif %}
    {%- set messages = messages[1:] %}{%- set is_ruled = true %}
{%- else %}{%- set rules_text = "" %}{%- set is_ruled = false %}{%- endif %}
{%- if is_ruled %}
    {{- "<|header_start|>system<|header_end|>\\n\\n" }}
    {%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
    {%- if tools is not none and not tools_in_user_message %}{{- asked(tools) }}{%- endif %}
    {{- rules_text }}{{- "<|eot|>" }}
{%- endif %}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- if messages[0]['content'] is string %}{%- set first = messages[0]['content'] | trim %}
        {%- else %}{%- set first = messages[0]['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | map('trim') | join('\\n') %}{%- endif %}
        {%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("Tools need a first user message.") }}{%- endif %}
    {{- '<|header_start|>user<|header_end|>\\n\\n' -}}{{- asked(tools) }}{{- first + "<|eot|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' }}{{- shown(message['content']) }}{{- "<|eot|>" }}
    {%- elif 'tool_calls' in message and message.tool_calls | length > 0 %}
        {{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{{- '<|python_start|>' }}{{- shown(message['content'] or '') }}{{- '<|python_end|>' }}
        {%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", ' }}{{- '"parameters": ' }}{{- call.function.arguments | tojson }}{{- "}" }}{%- endfor %}
        {{- "<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|header_start|>ipython<|header_end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif %}
"""

LLAMA_4_PYTHONIC = LLAMA_4.replace(
    'Answer with {"name": NAME, "parameters": ARGUMENTS} to call one.',
    "Answer with [func_name1(params_name1=params_value1), func_name2(params)] to call some.",
).replace(
    """{{- '<|python_start|>' }}{{- shown(message['content'] or '') }}{{- '<|python_end|>' }}
        {%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", ' }}{{- '"parameters": ' }}{{- call.function.arguments | tojson }}{{- "}" }}{%- endfor %}""",
    """{{- shown(message['content'] or '') }}{{- '<|python_start|>[' }}
        {%- for call in message.tool_calls %}{{- call.function.name + '(' }}{%- for k, v in call.function.arguments.items() %}{{- k + '=' }}{{- v | tojson if v is string else v }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ')' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']<|python_end|>' }}""",
)

TOOLS = {
    "Llama 4": LLAMA_4,
    "Gemma 4": GEMMA_4,
    "Qwen3.5": QWEN_35.lstrip("\n"),
    "Seed-OSS with tools": SEED_OSS,
    "MiniMax-M2": MINIMAX_M2,
    "OLMo 3": OLMO_3.replace("OPEN", ""),
    "OLMo 3 Think": OLMO_3.replace("OPEN", "<think>"),
    "Ministral 3": MINISTRAL_3.replace("DEFAULT", ""),
    "Ministral 3 Reasoning": MINISTRAL_3.replace("DEFAULT", "Think in [THINK] and [/THINK]."),
    "Devstral 2": MINISTRAL_3.replace("DEFAULT", "You are Devstral."),
    "Phi-4-mini": PHI_4_MINI,
    "DeepSeek R1 0528": DEEPSEEK_R1,
    "GLM-4.7": GLM_47,
    "Llama 4 pythonic": LLAMA_4_PYTHONIC,
    "Granite 3.1 with tools": GRANITE_31,
}

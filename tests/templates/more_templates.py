"""More chat templates in the manner of public model families, written for these tests: the least that has the family's
documented format."""

from __future__ import annotations

_XML_CALLS = """
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}"""

QWEN_CODER = (
    """\
{%- if tools %}
{{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') + 'Functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\nWrite <function=NAME> with a <parameter=NAME> for each argument.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message.content }}"""
    + _XML_CALLS
    + """{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
)

GLM = """\
{{- '[GMASK]<sop>' }}
{%- if tools %}{{- '<|system|>\\nFunctions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\nWrite <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- elif message.role == 'assistant' %}
{{- '<|assistant|>\\n<think>' + ((message.reasoning_content or '') if loop.index0 > ns.last else '') + '</think>' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name + '\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' + (value if value is string else value | tojson) + '</arg_value>\\n' }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- else %}{{- '<|' + message.role + '|>\\n' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
"""No end of turn: the next role's token ends one. A turn without reasoning has an empty pair of tags."""

_DEEPSEEK_HEAD = """\
{{- bos_token }}
{%- for message in messages %}{% if message.role == 'system' %}{{- message.content + '\\n' }}{% endif %}{% endfor %}
{%- for tool in tools or [] %}{{- 'Function: ' + (tool | tojson) + '\\n' }}{%- endfor %}
{%- set ns = namespace(tool=false, first=true) %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- set ns.tool = false %}{{- '<｜User｜>' + message.content }}"""

DEEPSEEK_V3 = (
    _DEEPSEEK_HEAD
    + """
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- ('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>') }}
{%- set ns.tool = false %}{%- set ns.first = true %}
{{- (message.content or '') + '<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}
{{- ('' if loop.first else '\\n') + '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}
{{- '<｜tool▁calls▁end｜>' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- ('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>') + message.content + eos_token }}
{%- set ns.tool = false %}
{%- elif message.role == 'tool' %}
{%- set ns.tool = true %}
{%- if ns.first %}{{- '<｜tool▁outputs▁begin｜>' }}{%- set ns.first = false %}{%- endif %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if ns.tool %}{{- '<｜tool▁outputs▁end｜>' }}{%- elif add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"""
)
"""The arguments have to be text. A reply behind results has no head of its own."""

DEEPSEEK_ODD = DEEPSEEK_V3.replace(
    "('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>')",
    "('<｜tool▁outputs▁end｜>' if ns.tool else '') + '<｜Assistant｜>'",
    1,
)
"""A call behind results has a head that the prompt does not have."""

DEEPSEEK_V31 = (
    _DEEPSEEK_HEAD
    + """
{%- elif message.role == 'assistant' %}
{{- ('' if ns.tool else '<｜Assistant｜></think>') + (message.content or '') }}
{%- set ns.tool = false %}
{%- for call in message.tool_calls or [] %}
{{- ('<｜tool▁calls▁begin｜>' if loop.first else '') + '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}
{{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) + '<｜tool▁call▁end｜>' }}
{%- if loop.last %}{{- '<｜tool▁calls▁end｜>' }}{%- endif %}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}
{%- set ns.tool = true %}{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.tool %}{{- '<｜Assistant｜></think>' }}{%- endif %}"""
)

HARMONY = """\
{{- '<|start|>system<|message|>You speak in channels.<|end|>' }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools or system %}
{{- '<|start|>developer<|message|>' + system }}
{%- for tool in tools or [] %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- set ns = namespace(last=-1, called=none) %}
{%- for message in messages %}
{%- if message.role == 'assistant' and not message.tool_calls %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{%- if message.thinking and loop.index0 > ns.last %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + (call.arguments | tojson) + '<|call|>' }}
{%- set ns.called = call.name %}
{%- elif message.role == 'assistant' %}
{%- if loop.last and not add_generation_prompt %}
{%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{%- if not ns.called %}{{- raise_exception('a result without a call') }}{%- endif %}
{{- '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'user' or not loop.first %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
"""One call a turn; the last reply ends as the model ends it, earlier ones otherwise; a result names the call before it
and cannot be without one; the reasoning of finished replies goes."""

PHI4 = """\
{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] }}
{%- if message['role'] == 'system' and message['tools'] %}{{- '<|tool|>' + message['tools'] + '<|/tool|>' }}{%- endif %}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- else %}{{- eos_token }}{%- endif %}"""
"""The tools are a field of the system message; calls are text of the reply."""

MISTRAL_V13 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{%- set messages = messages[1:] %}{%- endif %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{%- if call.id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('only user, assistant and tool') }}
{%- endif %}
{%- endfor %}"""

_GEMMA_ARGUMENTS = """
{%- for key, value in call.function.arguments | items %}
{{- ('' if loop.first else ',') + key + ':' + (QUOTE + value + QUOTE if value is string else value | tojson) }}
{%- endfor %}"""

GEMMA4 = (
    """\
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if system or tools %}
{{- '<|turn>system\\n' + system }}
{%- for tool in tools or [] %}{{- '<|tool>' + (tool | tojson) + '<tool|>' }}{%- endfor %}
{{- '<turn|>\\n' }}
{%- endif %}
{%- set ns = namespace(open=false, name='') %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- ('<turn|>\\n' if ns.open else '') + '<|turn>' + message.role + '\\n' + message.content + '<turn|>\\n' }}
{%- set ns.open = false %}
{%- elif message.role == 'assistant' %}
{%- if not ns.open %}{{- '<|turn>model\\n' }}{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call>call:' + call.function.name + '{' }}"""
    + _GEMMA_ARGUMENTS.replace("QUOTE", "'<|\"|>'")
    + """
{{- '}<tool_call|>' }}
{%- endfor %}
{%- set ns.open = message.tool_calls and true or false %}
{%- if not ns.open %}{{- '<turn|>\\n' }}{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|tool_response>response:' + (message.name or '') + '{value:<|"|>' + message.content + '<|"|>}<tool_response|>' }}
{%- set ns.open = true %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.open %}{{- '<|turn>model\\n' }}{%- endif %}"""
)
"""Calls, results and the reply that follows them are one turn."""

FUNCTION_GEMMA = (
    """\
{{- bos_token }}
{%- if tools or messages[0].role == 'system' %}
{{- '<start_of_turn>developer\\n' + (messages[0].content if messages[0].role == 'system' else '') }}
{%- for tool in tools or [] %}
{{- '<start_function_declaration>' + (tool | tojson) + '<end_function_declaration>' }}
{%- endfor %}
{{- '<end_of_turn>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<start_of_turn>user\\n' + message.content + '<end_of_turn>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<start_of_turn>model\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<start_function_call>call:' + call.function.name + '{' }}"""
    + _GEMMA_ARGUMENTS.replace("QUOTE", "'<escape>'")
    + """
{{- '}<end_function_call>' }}
{%- endfor %}
{{- '<end_of_turn>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<start_of_turn>user\\n<start_function_response>response:' + (message.name or '') + '{value:<escape>' + message.content + '<escape>}' }}
{{- '<end_function_response><end_of_turn>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
)

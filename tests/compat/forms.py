"""Call forms of programs, as they write them inside an agent. Each is run in one attempt, and what it raises is kept.

``llm``, ``rollout``, ``tracer`` and ``agl`` are there; a form says with ``assert`` what it means.
"""

from __future__ import annotations

from typing import Any

import agentlightning
from tests.compat.program import ask

FORMS = {
    # what an agent is handed
    "llm": "assert llm.endpoint and llm.model and isinstance(llm.sampling_parameters, dict)",
    "llm.get_base_url": "assert llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id) == llm.endpoint",
    "rollout": "assert rollout.mode == 'dev' and rollout.input['letter'] and rollout.status == 'running'",
    "rollout.attempt": "assert rollout.attempt.attempt_id and rollout.attempt.sequence_id == 1 and rollout.end_time is None",
    "rollout.config": "assert isinstance(rollout.config, agl.RolloutConfig) and rollout.resources_id is not None",
    "rollout.mark_agent_as_trainable": "rollout.mark_agent_as_trainable('assistant')",
    # rewards
    "emit_reward(float)": "assert agl.emit_reward(0.5).attributes['reward'] == 0.5",
    "emit_reward(int)": "agl.emit_reward(1)",
    "emit_reward(bool)": "agl.emit_reward(True)",
    "emit_reward(dict)": "agl.emit_reward({'right': 1.0, 'style': 0.5}, primary_key='right')",
    "emit_reward(attributes)": "agl.emit_reward(0.5, attributes={'why': 'short'})",
    "emit_reward(propagate)": "agl.emit_reward(0.5, propagate=False)",
    "emit_reward(call_id)": "agl.emit_reward(0.5, call_id=reply['id'])",
    "emitter.emit_reward": "from agentlightning.emitter import emit_reward; emit_reward(0.25)",
    "@reward": "@agl.reward\ndef score(x):\n    return x / 2\nassert score(1.0) == 0.5",
    "@reward async": "@agl.reward\nasync def score(x):\n    return x / 2\nassert asyncio.run(score(1.0)) == 0.5",
    "reward.reward": "from agentlightning.reward import reward\n@reward\ndef score():\n    return 1.0\nassert score() == 1.0",
    "find_final_reward": "agl.emit_reward(0.75); assert agl.find_final_reward(tracer.get_last_trace()) == 0.75",
    # what else it tells
    "emit_message": "agl.emit_message('thinking', attributes={'n': 1})",
    "emit_object": "agl.emit_object({'a': [1, 2]})",
    "emit_annotation": "agl.emit_annotation({'kind': 'plan', 'nested': {'a': 1}})",
    "emit_exception": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    agl.emit_exception(error)",
    "with operation": "with agl.operation(name='search') as op:\n    op.set_input(query='x')\n    op.set_output([1])",
    "@operation": "@agl.operation\ndef search(q):\n    return q\nassert search('x') == 'x'",
    "@operation async": "@agl.operation\nasync def search(q):\n    return q\nassert asyncio.run(search('x')) == 'x'",
    # tracers
    "tracer.get_last_trace": "assert isinstance(tracer.get_last_trace()[0], agl.Span)",
    "spans of calls": "assert any(s.name == 'openai.chat.completion' for s in tracer.get_last_trace())",
    "tracer.trace_context": "async def run():\n    async with tracer.trace_context('x', rollout_id='r') as t:\n        return t.get_last_trace()\nassert asyncio.run(run())",
    "tracer.trace_context()": "async def run():\n    async with tracer.trace_context():\n        pass\nasyncio.run(run())",
    "with tracer.trace_context": "with tracer.trace_context('x'):\n    pass",
    "tracer.init": "t = agl.AgentOpsTracer(); t.init(); t.init_worker(0); t.teardown_worker(0); t.teardown()",
    "tracer.init_worker(store)": "agl.OtelTracer().init_worker(0, store=None)",
    "tracer.lifespan": "with agl.Tracer().lifespan() as t:\n    assert isinstance(t, agl.Tracer)",
    "tracer.get_langchain_handler": "h = tracer.get_langchain_handler(); assert h is None or hasattr(h, 'on_llm_end')",
    "tracer.get_langchain_handler(tags)": "tracer.get_langchain_handler(tags=None)",
    "self.tracer": "assert agent.tracer is agent.get_tracer() and agent.runner.get_worker_id() == 0",
    "self.trainer": "assert agent.trainer.adapter.agent_match is None and agent.get_trainer() is agent.trainer",
    # adapters over what was recorded
    "TracerTraceToTriplet": "assert agl.TracerTraceToTriplet(agent_match=None, llm_call_match=None).adapt(tracer.get_last_trace())",
    "TripletExporter": "from agentlightning.adapter import TripletExporter; assert TripletExporter().export(tracer.get_last_trace())",
    "tracer.triplet": "from agentlightning.tracer.triplet import TripletExporter; assert TripletExporter().export(tracer.get_last_trace())",
    "TraceToMessages": "assert agl.TraceToMessages().adapt(tracer.get_last_trace())[0]['messages']",
    # logs
    "setup_logging": "agl.setup_logging()",
    "setup_logging(level)": "agl.setup_logging(level='INFO', apply_to=None)",
    "setup_logging(apply_to)": "agl.setup_logging('INFO', apply_to=['mine'])",
    "configure_logger": "import logging; assert isinstance(agl.configure_logger(), logging.Logger)",
    # what programs build
    "Rollout(...)": "r = agl.Rollout(rollout_id='r', input={'a': 1}, start_time=0.0); assert (r.mode, r.status, r.end_time) == (None, 'queuing', None)",
    "Triplet(...)": "t = agl.Triplet(prompt={'token_ids': [1]}, response={'token_ids': [2]}); assert t.reward is None and t.metadata == {}",
    "NamedResources(...)": "r = agl.NamedResources({'main_llm': agl.LLM(endpoint='http://x/v1', model='m', sampling_parameters={})}); assert r['main_llm'].model == 'm' and r.get('none') is None",
    "PromptTemplate f-string": "assert agl.PromptTemplate(template='say {word}', engine='f-string').format(word='x') == 'say x'",
    "PromptTemplate jinja": "assert agl.PromptTemplate(template='say {{ word }}', engine='jinja').format(word='x') == 'say x'",
}  # fmt: skip

kept: dict[str, str] = {}


class Forms(agentlightning.LitAgent[Any]):
    def rollout(self, task: Any, llm: Any, rollout: Any) -> float:
        import asyncio

        reply = ask(llm.endpoint, task["letter"], agent="assistant")
        for name, code in FORMS.items():
            space: dict[str, Any] = {
                "agl": agentlightning, "asyncio": asyncio, "llm": llm, "rollout": rollout, "reply": reply, "agent": self,
                "tracer": self.tracer,
            }  # fmt: skip
            try:
                exec(code, space)
                kept.setdefault(name, "")
            except BaseException as error:  # each form says for itself whether it holds
                kept[name] = f"{type(error).__name__}: {error}"
        return 1.0

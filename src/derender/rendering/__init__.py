"""API requests → GenerateRequests: token ids and sampling parameters."""

from derender.rendering.fields import NO_EFFECT
from derender.rendering.model import RenderModel, ToolConstraint
from derender.rendering.renderer import Renderer
from derender.rendering.structured import json_tool_constraint

__all__ = ["NO_EFFECT", "RenderModel", "Renderer", "ToolConstraint", "json_tool_constraint"]

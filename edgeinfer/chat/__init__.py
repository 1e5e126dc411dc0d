"""From chat messages to prompts, by the template in a GGUF file. `ChatTemplate` is the way in."""

from edgeinfer.chat.template import ChatTemplate, ChatTokenizer

__all__ = ["ChatTemplate", "ChatTokenizer"]

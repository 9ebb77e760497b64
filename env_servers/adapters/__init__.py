"""Adapters: environments and tools that others wrote, behind our protocol, and ours behind theirs. Each needs its
package only when it is started."""

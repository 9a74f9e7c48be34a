"""The keeper: one small process that owns one running machine while clients come and go."""

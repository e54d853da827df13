use stepfold::agent_loop::test_kit::Script;

from fedgsp_node.cli import main

main()

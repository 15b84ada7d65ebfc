from top_server.cli import main

main()
